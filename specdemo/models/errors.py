from specdemo.errors import BadInput as BadChoice  # noqa: F401
from specdemo.errors import FetchError as ZooError  # noqa: F401

"""What is read of a model's configuration, with the type and range of every value: config.json,
tokenizer_config.json, the metadata of a GGUF file. A value that is not listed is not looked at."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from specdemo.errors import BadInput
from specdemo.options import wrong_parameter


def _same_in_all_layers(value: object) -> object:
    """The value of a list of equal ones, which a GGUF file may have for each layer."""
    uniform = isinstance(value, list) and value and value.count(value[0]) == len(value)
    return value[0] if isinstance(value, list) and uniform else value


def _size(largest: int, *names: str, default: Any = ...) -> Any:
    return Field(default, ge=1, le=largest, validation_alias=AliasChoices(*names))


Size = Annotated[int, BeforeValidator(_same_in_all_layers)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
Share = Annotated[float, Field(gt=0, le=1)]
TokenId = Annotated[int, Field(ge=-1, lt=1 << 31)]  # files write -1 for none


CHARACTERS = 1 << 22  # of a vocabulary; 262,000 tokens have 2 million
ADDED_TOKENS = 10_000  # found in a text first; the tokenizers library prepares n in n² time


class Configuration(BaseModel):
    """A part of a configuration. null counts as absent."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None}

    @classmethod
    def of(cls, data: object, source: Path) -> Self:
        """The checked values of `data`, which was read from `source`. Raises BadInput."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            whole = f"{first['msg'].removeprefix('Value error, ')}."
            reason = str(wrong_parameter(error.errors())) if first["loc"] else whole
            raise unusable(source, reason) from None


def unusable(source: Path, why: str) -> BadInput:
    return BadInput(f"{source} cannot be used: {why}")


class Ends(Configuration):
    """Where answers end. `eos_token_id`: of tokens; `context`: tokens, 0 if it is not given."""

    eos_token_id: Annotated[
        list[TokenId], BeforeValidator(lambda ids: ids if isinstance(ids, list) else [ids])
    ] = []
    context: int = Field(
        0,
        ge=0,
        lt=1 << 31,
        validation_alias=AliasChoices(
            "max_position_embeddings", "n_positions", "n_ctx", "seq_length", "context_length"
        ),
    )
    text_config: dict[str, Any] = {}


class ShardIndex(Configuration):
    """model.safetensors.index.json: the file of each tensor."""

    weight_map: dict[str, str] = {}


def _by_name(value: object) -> object:
    """Several templates, each a dict with name and template, or one, as a dict by name."""
    if not isinstance(value, list):
        return {"default": value}
    return {str(form.get("name")): form.get("template") for form in value if isinstance(form, dict)}


Token = Annotated[
    str, BeforeValidator(lambda value: value.get("content") if type(value) is dict else value)
]


class TokenizerConfig(Configuration):
    """tokenizer_config.json: the chat templates by name, and the tokens that they may name."""

    chat_template: Annotated[dict[str, str], BeforeValidator(_by_name)] = {}
    bos_token: Token = ""
    eos_token: Token = ""
    unk_token: Token = ""
    pad_token: Token = ""


class Sizes(Configuration):
    """A decoder's shape, by the names of config.json and of GGUF files."""

    hidden: Size = _size(1 << 18, "hidden_size", "n_embd")
    layers: Size = _size(512, "num_hidden_layers", "n_layer", "block_count")
    heads: Size = _size(4096, "num_attention_heads", "n_head", "attention.head_count")
    kv_heads: Size = _size(4096, "num_key_value_heads", "attention.head_count_kv", default=0)
    width: Size = _size(1 << 16, "head_dim", "attention.key_length", default=0)
    inner: Size = _size(1 << 20, "intermediate_size", "n_inner", "feed_forward_length", default=0)
    vocabulary: Size = _size(1 << 22, "vocab_size")
    positions: Size = _size(1 << 24, "n_positions", default=0)
    rope_base: Positive = Field(
        10_000.0, validation_alias=AliasChoices("rope_theta", "rotary_emb_base", "rope.freq_base")
    )
    epsilon: float = Field(
        0.0,
        gt=0,
        lt=1,
        validation_alias=AliasChoices(
            "rms_norm_eps",
            "layer_norm_eps",
            "layer_norm_epsilon",
            "attention.layer_norm_rms_epsilon",
        ),
    )


class GgufSizes(Sizes):
    """The metadata of a GGUF file about its architecture, without the architecture's name."""

    scaling: str = Field("none", validation_alias="rope.scaling.type")
    factor: Positive = Field(1.0, validation_alias="rope.scaling.factor")
    rotated: Size = _size(1 << 16, "rope.dimension_count", default=0)


class GgufVocabulary(Configuration):
    """The metadata of a GGUF file about its tokenizer, without "tokenizer.ggml."."""

    model: str = ""
    pre: str = ""
    tokens: list[Annotated[str, Field(max_length=1024)]] = Field(min_length=1)
    token_type: list[int]
    merges: list[str] = []
    scores: list[float] = []
    bos: TokenId = Field(-1, validation_alias="bos_token_id")
    eos: TokenId = Field(-1, validation_alias="eos_token_id")
    unk: TokenId = Field(-1, validation_alias="unknown_token_id")
    pad: TokenId = Field(-1, validation_alias="padding_token_id")
    eot: TokenId = Field(-1, validation_alias="eot_token_id")
    add_bos_token: bool | None = None
    add_space_prefix: bool = True
    chat_template: str = ""

    def of_type(self, kind: int) -> list[str]:
        """The tokens of a type of GGUF files."""
        types = zip(self.tokens, self.token_type, strict=True)
        return [token for token, token_type in types if token_type == kind]

    @model_validator(mode="after")
    def _tokens_are_there(self) -> Self:
        if len(self.tokens) != len(self.token_type):
            raise ValueError(f"{len(self.tokens)} tokens have {len(self.token_type)} types")
        if max(self.bos, self.eos, self.unk, self.pad, self.eot) >= len(self.tokens):
            raise ValueError("a special token is beyond the last token")
        if sum(map(len, self.tokens)) > CHARACTERS:
            raise ValueError(f"its tokens have more than {CHARACTERS:,} characters")
        return self


class Rope(Configuration):
    """Rotary positions of config.json, unscaled, or scaled in a way that is not known here."""

    kind: str = Field("default", validation_alias=AliasChoices("rope_type", "type"))
    rope_theta: Positive | None = None
    partial_rotary_factor: Share | None = None


class LinearRope(Rope):
    factor: Positive


class Llama3Rope(LinearRope):
    low: Positive = Field(validation_alias="low_freq_factor")
    high: Positive = Field(validation_alias="high_freq_factor")
    original: Positive = Field(validation_alias="original_max_position_embeddings")

    @model_validator(mode="after")
    def _frequencies_are_in_order(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low_freq_factor is not below high_freq_factor")
        return self


class CheckpointConfig(Sizes):
    """config.json of a checkpoint of a family that `decoder` builds."""

    rope: dict[str, Any] = Field(
        {}, validation_alias=AliasChoices("rope_parameters", "rope_scaling")
    )
    rotary_pct: Share | None = None
    activation: str | None = Field(
        None, validation_alias=AliasChoices("hidden_act", "activation_function")
    )
    tie_word_embeddings: bool | None = None
    use_parallel_residual: bool = True
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    scale_attn_by_inverse_layer_idx: bool = False


class EagleLayer(CheckpointConfig):
    """The decoder layer of an EAGLE-3 head. Where only one value is listed, no other can be run."""

    model_type: Literal["llama", "qwen3"]
    layers: Literal[1] = Field(1, validation_alias="num_hidden_layers")
    activation: Literal["silu"] = Field("silu", validation_alias="hidden_act")
    layer_types: list[Literal["full_attention"]] = []


class EagleConfig(Configuration):
    """config.json of an EAGLE-3 head, beside the sizes of its layer. `layers`: of the target, whose
    inputs it reads. Where only one value is listed, no other can be run."""

    architectures: list[
        Literal[
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
            "Eagle3Speculator",
            "Eagle3DraftModel",
        ]
    ]
    eagle_config: dict[str, Any] = {}
    transformer_layer_config: dict[str, Any] = {}
    draft_vocabulary: Size = _size(1 << 22, "draft_vocab_size", default=0)
    target_hidden: Size = _size(1 << 18, "target_hidden_size", default=0)
    layers: list[Annotated[int, Field(ge=0, le=512)]] = Field(
        [], max_length=16, validation_alias="eagle_aux_hidden_state_layer_ids"
    )
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    use_aux_hidden_state: Literal[True] = True
    use_input_layernorm_in_first_layer: Literal[True] = True
    use_last_layernorm: Literal[True] = True
    use_mtp_layernorm: Literal[False] = False
    parallel_drafting: Literal[False] = False

    @model_validator(mode="after")
    def _has_one_norm_before_fc(self) -> Self:
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other")
        return self

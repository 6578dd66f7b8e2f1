"""The page: Gradio layout, Plotly figures, and the small script that draws tokens as they arrive.

It asks `specdemo.session` for answers and draws traces; nothing here decodes, measures or downloads.
"""

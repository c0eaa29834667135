"""Pages of the app, one file each: read widgets, call the engine, draw.

Streamlit runs these files as scripts; `pages.parts` contains their shared code.
"""

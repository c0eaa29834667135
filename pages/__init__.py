"""The pages of the workbench, one thin file each: read widgets, one engine call, draw.

Streamlit runs the files beside this one as scripts; what they share is in `pages.parts`.
"""

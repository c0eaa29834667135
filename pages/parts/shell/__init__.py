"""Layout, state, permalinks, charts and Python scripts shared by all pages.

A new page is one file in `pages` and one entry in ``page_layout.PAGES``.
"""

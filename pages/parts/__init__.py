"""Forms and views of the pages, high-level packages first; a package imports only those below it.

    lessons, coarse              lessons of the page Learn; two-stage releases
    compare, preview, release    views and forms of the page with this name
    workload                     forms for queries, and choices between the queries of a plan
    jobs                         worker processes and the functions that they call
    shell                        layout, request with undo, texts, buttons and figures

Import a module by its path, such as `pages.parts.shell.buttons`: the packages export no names, so a
page loads only the forms that it draws, and workers load `jobs.tasks` without Streamlit.
"""

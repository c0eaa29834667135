"""What the pages are made of.  Imports go down only; a part is entered by module: `from
pages.parts.shell import show`.

    lessons | coarse               the Learn page; a choice in steps, made of releases
    compare | preview | release    what a page of that name shows
    workload                       forms for what is asked, and for choosing from it
    jobs                           work in processes of its own
    shell                          the frame, the state with undo, words, drawing

The parts export nothing themselves: a page then loads the forms that it draws and no others, and
the workers load `jobs.tasks` without Streamlit.
"""

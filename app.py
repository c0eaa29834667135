"""The workbench in the browser: `streamlit run app.py`.

Streamlit serves `app`, which asks the guard before anything else, and runs this file for every
session as its script: the frame around the pages.  Worker processes, which import the main module
again, find neither.
"""


def main() -> None:
    """Make the workers ready, then draw the frame with the chosen page."""
    from pages.parts.jobs import worker_process as workers
    from pages.parts.shell import page_layout as frame

    workers.warm()
    frame.start()


if __name__ == "__main__":
    main()
elif __name__ == "app":
    import sys

    import streamlit as st
    from starlette.middleware import Middleware

    from pages.parts.jobs import server_lifecycle as serve
    from pages.parts.shell import auth_middleware as guard
    from pages.parts.shell import browser_history as entries
    from pages.parts.shell import streamlit_internals

    try:
        streamlit_internals.check()
    except streamlit_internals.UnsupportedStreamlitError as error:
        sys.exit(str(error))
    token = guard.start_token()
    guarded = [Middleware(guard.Guard, token=token), Middleware(entries.OneEntry)]
    app = st.App(__file__, middleware=guarded, lifespan=serve.lifespan(token))

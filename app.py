"""Entry point of the app: `streamlit run app.py`.

Streamlit imports this file once under the module name `app` and serves the ASGI application `app`
that the file then defines.  For every session it runs the file as `__main__`.  Worker processes
import it under a third name, and then it only defines `main`.
"""


def main() -> None:
    """Start the fork server of the worker processes, then draw the selected page."""
    from pages.parts.jobs import worker_process
    from pages.parts.shell import page_layout

    worker_process.warm()
    page_layout.start()


if __name__ == "__main__":
    main()
elif __name__ == "app":
    import sys

    import streamlit as st
    from starlette.middleware import Middleware

    from pages.parts.jobs import server_lifecycle
    from pages.parts.shell import auth_middleware, browser_history, streamlit_internals

    try:
        streamlit_internals.check()
    except streamlit_internals.UnsupportedStreamlitError as error:
        sys.exit(str(error))
    token = auth_middleware.start_token()
    middleware = [
        Middleware(auth_middleware.Guard, token=token),
        Middleware(browser_history.OneEntry),
    ]
    app = st.App(__file__, middleware=middleware, lifespan=server_lifecycle.lifespan(token))

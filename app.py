"""Entry point of the app: `streamlit run app.py`.

Streamlit imports this file once as the module `app`, to serve the object `app` behind the access
check, and runs it as `__main__` in every session.  Worker processes import it under a third name,
for which neither branch below is executed.
"""


def main() -> None:
    """Start the worker processes, then draw the selected page."""
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

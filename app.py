"""Entry point of the app: `streamlit run app.py`.

Streamlit serves `app`, behind the access check, and runs this file as the script of every session.
Worker processes import the main module again; `__name__` then matches neither branch.
"""


def main() -> None:
    """Start the workers, then draw the chosen page in its layout."""
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

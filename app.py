"""The workbench in the browser: `streamlit run app.py`.

Streamlit serves `app`, which asks the guard before anything else, and runs this file for every session as its script:
the frame around the pages.  Worker processes, which import the main module again, find neither.
"""


def main() -> None:
    """Draw the sidebar and the chosen page."""
    import streamlit as st

    from pages.parts.jobs import workers
    from pages.parts.shell import frame, link, places

    st.set_page_config(page_title="DP query workbench", page_icon="🔐", layout="wide")
    pages = [st.Page(p.file, title=p.title, icon=p.icon, default=p is frame.PAGES[0]) for p in frame.PAGES]
    chosen = st.navigation(pages)
    workers.warm()
    frame.enter(chosen.title)
    link.restore()
    places.restore()
    link.keep()
    with frame.drawn():
        frame.sidebar()
        chosen.run()
    places.keep()


if __name__ == "__main__":
    main()
elif __name__ == "app":
    import streamlit as st
    from starlette.middleware import Middleware

    from pages.parts.shell import guard, serve

    token = guard.start_token()
    guarded = [Middleware(guard.Guard, token=token)]
    app = st.App(__file__, middleware=guarded, lifespan=serve.lifespan(token))

"""What Streamlit is told to run. Alone here: a folder `pages` beside it would mean more to it."""

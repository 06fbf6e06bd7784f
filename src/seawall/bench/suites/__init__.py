"""The suites of `seawall bench`, one module each."""

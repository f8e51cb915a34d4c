"""The dashboard: a page, its style and its scripts, which `http.ui_files` serves as they are."""

"""The page of scripts/report.py and scripts/watch.py: its data is collected here, page_files/ is the page itself."""

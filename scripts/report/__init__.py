"""What scripts/report.py and scripts/watch.py build their page from; page_files/ is the page itself."""

"""The report of a cleaning, one HTML page."""

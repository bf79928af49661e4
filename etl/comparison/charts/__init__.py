"""The charts of the page, as SVG: one file for each."""

"""Parts of ``single_cell.py``."""

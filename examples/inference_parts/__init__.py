"""What ``inference_swaps.py`` needs beside its program: the grid, the methods, the table and the picture."""

"""What ``mnist_svi.py`` needs beside the training: arguments, files and pictures."""

"""The results of the overhead experiment: statistics of its runs, and the files and the table made from them."""

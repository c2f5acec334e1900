"""The page of the benchmarks: one HTML file from the results in a folder."""

"""The cleaner on files: CSV, Parquet and npz, in and out."""

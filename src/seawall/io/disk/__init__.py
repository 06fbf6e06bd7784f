"""Files, disk rings, io_uring, the page cache."""

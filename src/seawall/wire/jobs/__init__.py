"""Jobs on the wire and in records: rows of claimed jobs, and the options of a job in the headers of its record."""

"""The suites of `seawall bench`, one module each, and the disk and process subjects that they share."""

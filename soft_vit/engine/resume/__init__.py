"""Resume a stopped run so that it equals an uninterrupted one."""

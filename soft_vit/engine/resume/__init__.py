"""What makes a resumed run equal an uninterrupted one."""

"""Detection and segmentation on the pyramids: importing this package registers the backbone alone."""

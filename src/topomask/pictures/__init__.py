"""Pictures of masks on graphs, which are given by name or file, and report pages that contain pictures."""

"""Pictures of masks on graphs by name or from files, and pages that hold pictures."""

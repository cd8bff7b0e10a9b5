"""Learn patch descriptors, measure them, export them for matchserve."""

"""Export a trained network as a model directory that matchserve serves."""

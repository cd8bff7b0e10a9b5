"""Export trained networks as model directories that matchserve serves.

- `export`: write a model directory; `graph`: its ONNX file; `cards`: its card;
- `trained`: the run to export; `parity`: the check that the file equals the network;
- `quantise`: int8 models; `pooling`: two domain sizes; `publish`: figures for cards and README.
"""

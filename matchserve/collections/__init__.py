"""Collections: describe and match a folder of images, and export it to structure-from-motion tools.

All intermediate results are files of a workspace folder, named by their content. A run that was
killed continues with the same command.
"""

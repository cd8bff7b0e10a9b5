"""Find similar images by their local descriptors: ASMK* (Tolias, Avrithis and Jegou 2016).

Each descriptor belongs to its nearest word of a codebook. The residuals of an image are summed for
each word, and their signs are kept as bits. Two images are similar if they share words whose bits
agree. Arrays in, arrays out.
"""

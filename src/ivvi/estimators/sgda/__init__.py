"""Algorithm 1, phase 1: stochastic gradient descent in W, ascent in K.

`sgda` is the method, `loop` walks over the rows, the kernels take the steps.
"""

"""Standard errors: unadjusted, robust, clustered (one way and two), CR2, wild and HAC.

`standard_errors` decides which; `scores` and `meat` add up what the rows say; `estimate_covariance`
puts the covariance into an estimate.
"""

"""Model predictive control: short plans by quadratic programs, Newton steps and beam search."""

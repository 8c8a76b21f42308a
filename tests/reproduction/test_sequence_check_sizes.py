"""How often the checks of a sequence reject logs that keep the rules."""

import pytest

from ivvi import InputError
from ivvi_reproduction.sequence_checks import draw, measure, table


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rules kept", "global", "shared"])
def test_checks_keep_their_size_over_1000_logs(kind):
    """Nominal 5% within three binomial deviations."""
    sizes = measure(kind, 1000).rejected
    deviation = (0.05 * 0.95 / 1000) ** 0.5
    asked = [name for name, size in sizes.items() if size > 0]
    assert len(asked) == (13 if kind == "rules kept" else 11)
    careful = 0.03 if kind == "shared" else 0.05  # over 25 steps some tests are a little careful
    for name in asked:
        assert careful - 3 * deviation <= sizes[name] <= 0.05 + 3 * deviation, sizes


def test_the_table_of_sizes_names_what_is_rejected():
    record = measure("lasting z", 3)
    assert record.rejected["serial dependence of z"] == 1.0
    assert "serial dependence of z" in table([record])
    with pytest.raises(InputError, match="unknown kind 'late'"):
        draw("late", 0)

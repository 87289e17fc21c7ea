import pytest
from pydantic import ValidationError

from budwood.data.settings import DataSettings


def test_every_setting_says_what_it_means():
    assert all(field.description for field in DataSettings.model_fields.values())


@pytest.mark.parametrize(
    "values",
    [
        {"max_lenght": 3},
        {"max_length": 0},
        {"template": "x"},
        {"evaluation_fraction": 1.0},
        {"evaluation_rows_max": -1},
    ],
)
def test_what_makes_no_sense_is_refused(values):
    with pytest.raises(ValidationError):
        DataSettings(**values)


def test_settings_do_not_change():
    with pytest.raises(ValidationError):
        DataSettings().max_length = 3

"""The result of tuning as one HTML page, which needs no network, scripts or fonts, like that of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from etl.comparison.show.charts import describe_interval
from etl.comparison.show.page import list_facts, render_template
from etl.comparison.tuning.tuning_table import given_settings, mark_of, settings_of

if TYPE_CHECKING:
    from etl.comparison.tuning.tuning_results import Tuning

# Limits of `Limits`, in words.
LIMITS = {"memory_nbytes": "--max-memory", "disk_nbytes": "--max-disk", "prepare_seconds": "--max-prepare"}


def render_tuning_page(tuning: Tuning) -> str:
    """Return the page as HTML. Markup in the texts of the result is escaped."""
    return render_template(
        "tuning.html",
        tuning=tuning,
        strategies=[(f"strategy-{number}", each) for number, each in enumerate(tuning.strategies, 1)],
        mark_of=mark_of,
        settings_of=settings_of,
        given_settings=given_settings,
        describe_interval=describe_interval,
        limits=LIMITS,
        facts=list_facts(Settings=tuning.settings, Machine=tuning.machine, Versions=tuning.versions),
    )

"""Add the defence to a plan that was priced but never searched for."""

from __future__ import annotations

from meshwright.planner.legality import Question
from meshwright.planner.neighbours import neighbours
from meshwright.specs.plan import Plan


def defend(plan: Plan) -> Plan:
    """Return the plan with its neighbours priced, if it has no alternatives yet."""
    if plan.alternatives:
        return plan
    question = Question(plan.model, plan.cluster, plan.job)
    found = neighbours(question, plan.layout, plan.estimate)
    return plan.model_copy(update={"alternatives": found})

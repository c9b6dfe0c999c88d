"""Views of the tables for people who browse a store: plain names, and a unit in every number's.

They have shipped with the migration that made them: what changes needs a migration of its own.
"""

from collections.abc import Mapping

ADMISSIBLE = "score_cost is not null and coalesce(score_broken, '[]') = '[]'"
"""Which trials may lead, in the very words of the index that finds them."""

VIEWS: Mapping[str, str] = {
    "all_trials": """
        select s.name as study_name, t.ordinal as trial, t.status, t.config,
            t.score_value as score, t.score_unit as score_unit, t.score_broken as limits_broken,
            t.failure_kind as failure, t.failure_stage as failed_at, t.message,
            round((julianday(t.ended_at) - julianday(t.started_at)) * 86400, 3) as duration_seconds,
            t.attempts as launches, t.author, t.rationale, t.started_at, t.ended_at, t.study_id
        from trials t join studies s on s.id = t.study_id""",
    "best_trials": f"""
        select s.name as study_name, s.objective, t.ordinal as trial, t.score_value as score,
            t.score_unit as score_unit, t.config, t.author, t.ended_at, t.study_id
        from studies s cross join trials t on t.study_id = s.id and t.ordinal = (
            select ordinal from trials where study_id = s.id and {ADMISSIBLE}
            order by score_cost, ordinal limit 1)""",
    "all_studies": """
        select s.name as study_name, s.objective, s.strategy, s.status, s.trial_count as trials,
            s.measured_count as measured, s.trial_count - s.measured_count as failed,
            s.launch_count as launches, b.score as best_score, b.score_unit, b.trial as best_trial,
            s.created_at, s.version as cclsearch_version, s.id as study_id
        from studies s left join best_trials b on b.study_id = s.id""",
    "failures_by_kind": """
        select s.name as study_name, t.failure_kind as failure, t.failure_stage as failed_at,
            count(*) as trials, min(t.ordinal) as first_trial, t.message as first_message,
            t.study_id
        from trials t join studies s on s.id = t.study_id where t.failure_kind is not null
        group by t.study_id, t.failure_kind, t.failure_stage""",
    "files": """
        select s.name as study_name, a.ordinal as trial, a.name as file,
            a.size_bytes as size_bytes, a.digest as sha256, a.study_id
        from artifacts a join studies s on s.id = a.study_id""",
    "repeated_launches": """
        select s.name as study_name, c.ordinal as trial, c.purpose, c.series as after_trials,
            c.round, c.position, json_extract(c.outcome, '$.status') as status, c.study_id
        from confirmations c join studies s on s.id = c.study_id""",
    "trials_under_way": """
        select s.name as study_name, i.ordinal as trial, i.author, i.rationale, i.started_at,
            i.study_id
        from intents i join studies s on s.id = i.study_id""",
}

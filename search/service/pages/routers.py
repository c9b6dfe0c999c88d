"""All pages, for the application to take in."""

from search.service.pages import (
    routes_compare,
    routes_explore,
    routes_frame,
    routes_health,
    routes_leaderboard,
    routes_login,
    routes_policies,
    routes_studies,
    routes_study,
    routes_submit,
    routes_trial,
    routes_trials,
)

ROUTERS = (
    routes_frame.router,
    routes_login.router,
    routes_studies.router,
    routes_submit.router,
    routes_study.router,
    routes_trials.router,
    routes_trial.router,
    routes_policies.router,
    routes_explore.router,
    routes_compare.router,
    routes_leaderboard.router,
    routes_health.router,
)

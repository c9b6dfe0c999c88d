"""Why a job failed, from everything that it left behind."""

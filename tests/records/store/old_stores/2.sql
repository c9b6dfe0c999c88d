BEGIN TRANSACTION;
CREATE TABLE "_sqlite_migrations" (
   "id" INTEGER PRIMARY KEY,
   "migration_set" TEXT,
   "name" TEXT,
   "applied_at" TEXT
);
INSERT INTO "_sqlite_migrations" VALUES(1,'cclsearch','create_studies_and_trials','2026-11-22 08:25:26.441109+00:00');
INSERT INTO "_sqlite_migrations" VALUES(2,'cclsearch','tell_why_launches_were_repeated','2026-11-22 08:25:26.447453+00:00');
CREATE TABLE "artifacts" (
   "study_id" TEXT,
   "ordinal" INTEGER,
   "name" TEXT,
   "digest" TEXT,
   "size_bytes" INTEGER,
   PRIMARY KEY ("study_id", "ordinal", "name")
);
INSERT INTO "artifacts" VALUES('one',0,'log','cf8e1a941cd1570e7d50747297f48029668c44b2f9fab6a6f60288aa74cb7c70',9);
INSERT INTO "artifacts" VALUES('one',1,'log','4678ed351d1d61978d19b762369e8dbdda3f9ec5a2d1e637b8344710aa2c67e9',9);
CREATE TABLE "confirmations" (
   "study_id" TEXT,
   "series" INTEGER,
   "round" INTEGER,
   "ordinal" INTEGER,
   "outcome" TEXT, "purpose" TEXT NOT NULL DEFAULT 'confirm', "position" INTEGER NOT NULL DEFAULT 0,
   PRIMARY KEY ("study_id", "series", "round", "ordinal")
);
INSERT INTO "confirmations" VALUES('one',4,0,0,'{"measurement": {"step_times_s": [[0.5, 0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25, 0.25]], "warmup_times_s": [[1.0, 0.9], [1.0, 0.9]], "losses": [6.25, 6.125], "tokens_per_step": 2048, "peak_memory_bytes": [1048576, 2097152], "wall_s": 12.5, "device": "cpu", "torch_version": "2.0", "serving": null, "profiled": false, "tokens_verified": true, "conditions": null, "stopped": null, "turn_steps": [], "message_times_s": []}, "metrics": [{"name": "step_time", "value": 0.5, "unit": "s", "better": "lower", "version": 1}], "absent": {}, "breakdown": {"compute_s": 0.25, "exposed_communication_s": 0.125, "hidden_communication_s": 0.0625, "other_s": 0.0, "idle_s": 0.125}, "artifacts": [], "status": "measured"}','confirm',0);
INSERT INTO "confirmations" VALUES('one',4,0,3,'{"measurement": {"step_times_s": [[0.5, 0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25, 0.25]], "warmup_times_s": [[1.0, 0.9], [1.0, 0.9]], "losses": [6.25, 6.125], "tokens_per_step": 2048, "peak_memory_bytes": [1048576, 2097152], "wall_s": 12.5, "device": "cpu", "torch_version": "2.0", "serving": null, "profiled": false, "tokens_verified": true, "conditions": null, "stopped": null, "turn_steps": [], "message_times_s": []}, "metrics": [{"name": "step_time", "value": 0.5, "unit": "s", "better": "lower", "version": 1}], "absent": {}, "breakdown": {"compute_s": 0.25, "exposed_communication_s": 0.125, "hidden_communication_s": 0.0625, "other_s": 0.0, "idle_s": 0.125}, "artifacts": [], "status": "measured"}','confirm',1);
INSERT INTO "confirmations" VALUES('one',4,1,0,'{"measurement": {"step_times_s": [[0.5, 0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25, 0.25]], "warmup_times_s": [[1.0, 0.9], [1.0, 0.9]], "losses": [6.25, 6.125], "tokens_per_step": 2048, "peak_memory_bytes": [1048576, 2097152], "wall_s": 12.5, "device": "cpu", "torch_version": "2.0", "serving": null, "profiled": false, "tokens_verified": true, "conditions": null, "stopped": null, "turn_steps": [], "message_times_s": []}, "metrics": [{"name": "step_time", "value": 0.5, "unit": "s", "better": "lower", "version": 1}], "absent": {}, "breakdown": {"compute_s": 0.25, "exposed_communication_s": 0.125, "hidden_communication_s": 0.0625, "other_s": 0.0, "idle_s": 0.125}, "artifacts": [], "status": "measured"}','confirm',0);
INSERT INTO "confirmations" VALUES('one',4,1,3,'{"measurement": {"step_times_s": [[0.5, 0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25, 0.25]], "warmup_times_s": [[1.0, 0.9], [1.0, 0.9]], "losses": [6.25, 6.125], "tokens_per_step": 2048, "peak_memory_bytes": [1048576, 2097152], "wall_s": 12.5, "device": "cpu", "torch_version": "2.0", "serving": null, "profiled": false, "tokens_verified": true, "conditions": null, "stopped": null, "turn_steps": [], "message_times_s": []}, "metrics": [{"name": "step_time", "value": 0.5, "unit": "s", "better": "lower", "version": 1}], "absent": {}, "breakdown": {"compute_s": 0.25, "exposed_communication_s": 0.125, "hidden_communication_s": 0.0625, "other_s": 0.0, "idle_s": 0.125}, "artifacts": [], "status": "measured"}','confirm',1);
CREATE TABLE "exchanges" (
   "study_id" TEXT,
   "ordinal" INTEGER,
   "digest" TEXT,
   "model" TEXT,
   "result" TEXT,
   "input_tokens" INTEGER,
   "output_tokens" INTEGER,
   "cache_read_tokens" INTEGER,
   "cache_write_tokens" INTEGER,
   "latency_s" REAL,
   "request_count" INTEGER,
   PRIMARY KEY ("study_id", "ordinal")
);
INSERT INTO "exchanges" VALUES('one',0,'71cd8551c11ea67caad2706a7f7cde45c38ef54d1d20aaaaeb49e570759cafde','m','submitted',3,0,0,0,1.5,1);
INSERT INTO "exchanges" VALUES('one',4,'71cd8551c11ea67caad2706a7f7cde45c38ef54d1d20aaaaeb49e570759cafde','m','submitted',3,0,0,0,1.5,1);
CREATE TABLE "intents" (
   "study_id" TEXT REFERENCES "studies"("id"),
   "ordinal" INTEGER,
   "started_at" TEXT,
   "policy_digest" TEXT REFERENCES "policies"("digest"),
   "author" TEXT,
   "parent" TEXT,
   "rationale" TEXT,
   "exchange_digest" TEXT,
   PRIMARY KEY ("study_id", "ordinal")
);
INSERT INTO "intents" VALUES('one',4,'2026-01-01T00:00:00.000+00:00','9a4957b1e5c4052efb5c78e1a90ff5709280e58f29049cfc74ea1d518ddbcd2a','x',NULL,'try 4','71cd8551c11ea67caad2706a7f7cde45c38ef54d1d20aaaaeb49e570759cafde');
CREATE TABLE "metrics" (
   "study_id" TEXT,
   "ordinal" INTEGER,
   "name" TEXT,
   "value" REAL,
   "unit" TEXT,
   "version" INTEGER,
   PRIMARY KEY ("study_id", "ordinal", "name")
);
INSERT INTO "metrics" VALUES('one',0,'step_time',0.5,'s',1);
INSERT INTO "metrics" VALUES('one',3,'step_time',0.25,'s',1);
CREATE TABLE "policies" (
   "digest" TEXT PRIMARY KEY,
   "source" TEXT
);
INSERT INTO "policies" VALUES('30c3c28c7741f688340376237449e6c7b035e72be1830116de702afc8c0f71b7','# 0
');
INSERT INTO "policies" VALUES('c64c628714956546a09643805e88459169f29d1aff4e43e199a62e6096404073','# 1
');
INSERT INTO "policies" VALUES('a0f854bb52dc0c69ec7fc20738bef632e7e0fd759a1ac44562c1a14353ee4e82','# 2
');
INSERT INTO "policies" VALUES('397460990513ac8a8fe48298004b661aad1022b6cea140fb793ad7ae8bf1cccc','# 3
');
INSERT INTO "policies" VALUES('9a4957b1e5c4052efb5c78e1a90ff5709280e58f29049cfc74ea1d518ddbcd2a','# 4
');
CREATE TABLE "studies" (
   "id" TEXT PRIMARY KEY,
   "name" TEXT,
   "objective" TEXT,
   "strategy" TEXT,
   "status" TEXT,
   "created_at" TEXT,
   "version" TEXT,
   "study" TEXT,
   "summary" TEXT
);
INSERT INTO "studies" VALUES('one','example','step_time','auto','interrupted','2026-11-22T08:25:26.450+00:00','0.1.0','{"name": "example", "workload": {"name": "decoder", "global_batch": 16, "sequence_length": 128, "model": null, "family": null, "phase": "training", "precision": "fp32", "layer_count": 4, "hidden_size": null, "head_count": null, "kv_head_count": null, "ffn_size": null, "vocab_size": null, "parameter_count": null, "expert_count": null, "experts_per_token": null, "shared_expert_count": null, "expert_ffn_size": null, "dense_layer_count": null, "output_length": null, "text_file": null, "seed": 42, "messages": []}, "environment": {"name": "bench", "device": "cpu", "accelerator": "cpu", "world_size": 4, "ranks_per_node": 2, "memory_bytes": null, "scale_up": null, "scale_out": null, "software": {}}, "space": {"dimensions": [{"name": "tp", "choices": [1, 2, 4], "range": null, "when": null, "description": ""}, {"name": "pp", "choices": [1, 2], "range": null, "when": null, "description": ""}], "constraints": [], "defaults": {}}, "objective": {"expression": "step_time", "direction": null}, "seed_policy": "sharded", "budget": {"trials": 15, "launches": null, "patience": 5, "max_failures": 6, "max_wall_s": null, "max_tokens": null, "max_cost_usd": null}, "measure": {"warmup_steps": 2, "timed_steps": 5, "max_timed_steps": 20, "step_precision": 0.03, "stop_above_s": null, "profiled_steps": 1, "timeout_s": 120.0, "hang_after_s": 30.0, "infrastructure_retries": 2, "self_test_rounds": 2, "race_ratio": 1.5, "race_rounds": 4, "confirm_top": 4, "confirm_rounds": 4, "max_confirm_rounds": 6, "margin": 0.01, "alpha": 0.05, "together": "auto"}, "launch": {"recipe": "builtin", "launcher": "local", "memory_budget_bytes": null, "threads_per_rank": 1, "start": "warm"}, "command": null, "llm": {"model": "claude-opus-5-5", "base_url": null, "timeout_s": 600.0, "max_output_tokens": 8192}, "strategy": "auto", "random_seed": 42}',NULL);
INSERT INTO "studies" VALUES('two','example','step_time','auto','finished','2026-11-22T08:25:26.655+00:00','0.1.0','{"name": "example", "workload": {"name": "decoder", "global_batch": 16, "sequence_length": 128, "model": null, "family": null, "phase": "training", "precision": "fp32", "layer_count": 4, "hidden_size": null, "head_count": null, "kv_head_count": null, "ffn_size": null, "vocab_size": null, "parameter_count": null, "expert_count": null, "experts_per_token": null, "shared_expert_count": null, "expert_ffn_size": null, "dense_layer_count": null, "output_length": null, "text_file": null, "seed": 42, "messages": []}, "environment": {"name": "bench", "device": "cpu", "accelerator": "cpu", "world_size": 4, "ranks_per_node": 2, "memory_bytes": null, "scale_up": null, "scale_out": null, "software": {}}, "space": {"dimensions": [{"name": "tp", "choices": [1, 2, 4], "range": null, "when": null, "description": ""}, {"name": "pp", "choices": [1, 2], "range": null, "when": null, "description": ""}], "constraints": [], "defaults": {}}, "objective": {"expression": "step_time", "direction": null}, "seed_policy": "sharded", "budget": {"trials": 15, "launches": null, "patience": 5, "max_failures": 6, "max_wall_s": null, "max_tokens": null, "max_cost_usd": null}, "measure": {"warmup_steps": 2, "timed_steps": 5, "max_timed_steps": 20, "step_precision": 0.03, "stop_above_s": null, "profiled_steps": 1, "timeout_s": 120.0, "hang_after_s": 30.0, "infrastructure_retries": 2, "self_test_rounds": 2, "race_ratio": 1.5, "race_rounds": 4, "confirm_top": 4, "confirm_rounds": 4, "max_confirm_rounds": 6, "margin": 0.01, "alpha": 0.05, "together": "auto"}, "launch": {"recipe": "builtin", "launcher": "local", "memory_budget_bytes": null, "threads_per_rank": 1, "start": "warm"}, "command": null, "llm": {"model": "claude-opus-5-5", "base_url": null, "timeout_s": 600.0, "max_output_tokens": 8192}, "strategy": "auto", "random_seed": 42}',NULL);
CREATE TABLE "trials" (
   "study_id" TEXT REFERENCES "studies"("id"),
   "ordinal" INTEGER,
   "status" TEXT,
   "score_value" REAL,
   "score_unit" TEXT,
   "score_cost" REAL,
   "failure_kind" TEXT,
   "failure_stage" TEXT,
   "message" TEXT,
   "config" TEXT,
   "config_digest" TEXT,
   "author" TEXT,
   "parent" TEXT,
   "rationale" TEXT,
   "policy_digest" TEXT REFERENCES "policies"("digest"),
   "exchange_digest" TEXT,
   "attempts" INTEGER,
   "started_at" TEXT,
   "ended_at" TEXT,
   "outcome" TEXT,
   PRIMARY KEY ("study_id", "ordinal")
);
INSERT INTO "trials" VALUES('one',0,'measured',0.5,'s',0.5,NULL,NULL,NULL,'{"mode": "a", "on": true, "tp": 2, "x": 1.0}','31d1ec4a6d7912bbf044f05f32e61e0a8d19ed6ba172a9c3a9b6454fc1a469ce','x',NULL,'try 0','30c3c28c7741f688340376237449e6c7b035e72be1830116de702afc8c0f71b7','71cd8551c11ea67caad2706a7f7cde45c38ef54d1d20aaaaeb49e570759cafde',1,'2026-01-01T00:00:00.000+00:00','2026-01-01T00:00:01.000+00:00','{"measurement": {"step_times_s": [[0.5, 0.5, 0.5, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25, 0.25]], "warmup_times_s": [[1.0, 0.9], [1.0, 0.9]], "losses": [6.25, 6.125], "tokens_per_step": 2048, "peak_memory_bytes": [1048576, 2097152], "wall_s": 12.5, "device": "cpu", "torch_version": "2.0", "serving": null, "profiled": false, "tokens_verified": true, "conditions": null, "stopped": null, "turn_steps": [], "message_times_s": []}, "metrics": [{"name": "step_time", "value": 0.5, "unit": "s", "better": "lower", "version": 1}], "absent": {}, "breakdown": {"compute_s": 0.25, "exposed_communication_s": 0.125, "hidden_communication_s": 0.0625, "other_s": 0.0, "idle_s": 0.125}, "artifacts": [{"name": "log", "digest": "cf8e1a941cd1570e7d50747297f48029668c44b2f9fab6a6f60288aa74cb7c70", "size_bytes": 9}], "status": "measured"}');
INSERT INTO "trials" VALUES('one',1,'failed',NULL,NULL,NULL,'crash','launch','it broke',NULL,NULL,'x',NULL,'try 1','c64c628714956546a09643805e88459169f29d1aff4e43e199a62e6096404073',NULL,1,'2026-01-01T00:00:00.000+00:00','2026-01-01T00:00:01.000+00:00','{"stage": "launch", "kind": "crash", "message": "it broke", "artifacts": [{"name": "log", "digest": "4678ed351d1d61978d19b762369e8dbdda3f9ec5a2d1e637b8344710aa2c67e9", "size_bytes": 9}], "status": "failed"}');
INSERT INTO "trials" VALUES('one',2,'failed',NULL,NULL,NULL,'invalid_config','check','no',NULL,NULL,'x',NULL,'try 2','a0f854bb52dc0c69ec7fc20738bef632e7e0fd759a1ac44562c1a14353ee4e82',NULL,0,'2026-01-01T00:00:00.000+00:00','2026-01-01T00:00:01.000+00:00','{"stage": "check", "kind": "invalid_config", "message": "no", "artifacts": [], "status": "failed"}');
INSERT INTO "trials" VALUES('one',3,'measured',0.25,'s',0.25,NULL,NULL,NULL,'{"tp": 4}','21e3802da4cd7a7823d896e370726ac44ed349818a7510b0fd61af20a3436033','x',NULL,'try 3','397460990513ac8a8fe48298004b661aad1022b6cea140fb793ad7ae8bf1cccc',NULL,2,'2026-01-01T00:00:00.000+00:00','2026-01-01T00:00:01.000+00:00','{"measurement": {"step_times_s": [[0.25, 0.25, 0.25, 0.25, 0.25], [0.125, 0.125, 0.125, 0.125, 0.125]], "warmup_times_s": [[1.0, 0.9], [1.0, 0.9]], "losses": [6.25, 6.125], "tokens_per_step": 2048, "peak_memory_bytes": [1048576, 2097152], "wall_s": 12.5, "device": "cpu", "torch_version": "2.0", "serving": null, "profiled": false, "tokens_verified": true, "conditions": null, "stopped": null, "turn_steps": [], "message_times_s": []}, "metrics": [{"name": "step_time", "value": 0.25, "unit": "s", "better": "lower", "version": 1}], "absent": {}, "breakdown": {"compute_s": 0.25, "exposed_communication_s": 0.125, "hidden_communication_s": 0.0625, "other_s": 0.0, "idle_s": 0.125}, "artifacts": [], "status": "measured"}');
CREATE UNIQUE INDEX "idx__sqlite_migrations_migration_set_name"
    ON "_sqlite_migrations" ("migration_set", "name");
COMMIT;

"""What an analysis found, for programs."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from search.bench_analysis.analysis import Analysis
from search.bench_analysis.points import DevicePoint, device_point
from search.bench_analysis.results import Results
from search.bench_analysis.verdicts import PairVerdicts


def analysis_facts(found: Analysis) -> Mapping[str, object]:
    """Everything, as JSON takes it; what does not exist is null, changes are in percent."""
    return {
        "baseline": found.baseline.label if found.baseline else None,
        "thresholds": asdict(found.limits),
        "labels": [_label_facts(results) for results in found.results],
        "counts": {
            pair.label: {standing.value: count for standing, count in pair.counts.items()}
            for pair in found.pairs
        },
        "correction": "holm",
        "regression_count": found.regression_count,
        "undecided_count": found.open_count,
        "exit": found.exit_status,
        "points": [facts for pair in found.pairs for facts in _pair_facts(found, pair)],
        "baseline_only": {
            pair.label: [_point_facts(point) for point in pair.missing] for pair in found.pairs
        },
        "broken": {
            pair.label: [_point_facts(point) for point in pair.broken] for pair in found.pairs
        },
        "warnings": found.warnings,
        "caveats": found.caveats,
    }


def _label_facts(results: Results) -> Mapping[str, object]:
    return {
        "label": results.label,
        "folder": str(results.folder),
        "point_count": len(results.rows),
        "torch_version": results.told("TorchVersion"),
        "backend": results.told("CommBackend"),
        "backend_version": results.told("CommBackendVersion"),
        "not_measured": [
            {
                **_point_facts(device_point(row)),
                "status": row.status,
                "reason": row.columns.get("Reason"),
            }
            for row in results.left_out
        ],
    }


def _pair_facts(found: Analysis, pair: PairVerdicts) -> Iterator[Mapping[str, object]]:
    own = found.named(pair.label).figures
    base = found.named(pair.baseline).figures
    for point, verdict in pair.points.items():
        yield {
            "label": pair.label,
            "baseline": pair.baseline,
            **_point_facts(point),
            "verdict": verdict.standing.value,
            "reason": verdict.reason,
            "evidence": verdict.evidence.value,
            "decision": verdict.decision.value,
            "is_undecided": verdict.is_open,
            "detectable_percent": verdict.detectable_percent,
            "round_count": verdict.round_count,
            "latency_us": own[point].latency_us,
            "baseline_latency_us": base[point].latency_us if point in base else None,
            "latency_change": verdict.latency_change,
            "latency_change_low": verdict.low,
            "latency_change_high": verdict.high,
            "bandwidth_change": verdict.bandwidth_change,
        }


def _point_facts(point: DevicePoint) -> Mapping[str, object]:
    return {
        **asdict(point.point),
        "device_type": point.device_type,
        "device_name": point.device_name,
    }

//! Figures as Prometheus reads them.

use farpage_client::{Figures, ObjectFigures, PagerFigures, times};
use farpage_default_pager::manager::paging::PagingFile;
use farpage_object::Times;
use prometheus::TextEncoder;
use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

/// What the text is.
pub const KIND: &str = prometheus::TEXT_FORMAT;

/// Makes the metric of an object or a pager, with its labels.
type Make<'a, T> = &'a dyn Fn(&[(&str, &str)], &T) -> Metric;

/// All metrics, in Prometheus's text format.
pub fn text(figures: &Figures) -> String {
    let mut all = of_memory(figures);
    all.extend(of_objects(&figures.objects));
    all.extend(of_pagers(&figures.pagers));
    // One without metrics has nothing to say, and is an error to the encoder.
    all.retain(|family| !family.get_metric().is_empty());
    let encoded = TextEncoder::new().encode_to_string(&all);
    encoded.unwrap_or_else(|error| format!("# there are no metrics: {error}\n"))
}

fn of_memory(figures: &Figures) -> Vec<MetricFamily> {
    let one = |name, help, value: u64| family(name, help, vec![gauge(&[], value)]);
    let refused = figures.no_room.map_or(0, |(_, refused)| refused);
    let space = figures.paging_space.clone().unwrap_or_default();
    let process = space.process.as_ref();
    let of_files = |of: &dyn Fn(&PagingFile) -> Option<u64>| {
        let files = space.files.iter();
        let metrics = files.filter_map(|file| Some(gauge(&[("folder", &file.folder)], of(file)?)));
        metrics.collect()
    };
    vec![
        one(
            "farpage_ram_limit_bytes",
            "RAM that the host kernel may use.",
            figures.ram_bytes,
        ),
        one(
            "farpage_resident_bytes",
            "Pages of all objects in memory.",
            figures.resident_bytes,
        ),
        one(
            "farpage_compressed_bytes",
            "RAM that compressed pages take.",
            space.compressed_bytes,
        ),
        one(
            "farpage_objects",
            "Objects of all users.",
            figures.objects_all,
        ),
        one(
            "farpage_out_of_room",
            "1 while paging space is full and new pages are refused.",
            figures.no_room.is_some().into(),
        ),
        one(
            "farpage_refused_pages",
            "New pages refused since there is no room; 0 when there is.",
            refused,
        ),
        one(
            "farpage_default_pager_process",
            "The process that is the default pager; 0 when the host kernel is.",
            process.map_or(0, |process| process.pid.into()),
        ),
        one(
            "farpage_default_pager_late",
            "1 while that process owes an answer for seconds.",
            process.is_some_and(|process| process.is_late).into(),
        ),
        one(
            "farpage_default_pager_moving",
            "1 while pages move to it from the one before.",
            space.is_moving.into(),
        ),
        one(
            "farpage_default_pagers_died",
            "Processes that were the default pager and died with pages.",
            space.died.len() as u64,
        ),
        family(
            "farpage_paging_file_used_bytes",
            "What pages take in a paging file.",
            of_files(&|file| Some(file.used_bytes)),
        ),
        family(
            "farpage_paging_file_limit_bytes",
            "What a paging file may take, where that is limited.",
            of_files(&|file| file.limit_bytes),
        ),
    ]
}

fn of_objects(objects: &[ObjectFigures]) -> Vec<MetricFamily> {
    let each = |make: Make<'_, ObjectFigures>| -> Vec<Metric> {
        let metric = |object: &ObjectFigures| {
            let (number, uid) = (object.number.to_string(), object.uid.to_string());
            let labels = [
                ("name", object.name.as_str()),
                ("number", number.as_str()),
                ("uid", uid.as_str()),
            ];
            make(&labels, object)
        };
        objects.iter().map(metric).collect()
    };
    let gauges = |name, help, of: fn(&ObjectFigures) -> u64| {
        family(
            name,
            help,
            each(&|labels, object| gauge(labels, of(object))),
        )
    };
    let counters = |name, help, of: fn(&ObjectFigures) -> u64| {
        family(
            name,
            help,
            each(&|labels, object| counter(labels, of(object))),
        )
    };
    let seconds = each(&|labels, object| histogram(labels, &times(&object.faults)));
    vec![
        gauges(
            "farpage_object_size_bytes",
            "Size of an object.",
            |object| object.bytes,
        ),
        gauges(
            "farpage_object_resident_bytes",
            "Of an object, in memory.",
            |object| object.resident_bytes,
        ),
        gauges(
            "farpage_object_dirty_bytes",
            "Of that in memory, what nobody else has.",
            |object| object.dirty_bytes,
        ),
        gauges(
            "farpage_object_wired_bytes",
            "Of an object, what stays in memory.",
            |object| object.wired_bytes,
        ),
        gauges(
            "farpage_object_processes",
            "Processes that map an object.",
            |object| object.mapped_by.len() as u64,
        ),
        counters(
            "farpage_object_paged_in_bytes_total",
            "What came from an object's pager.",
            |object| object.paged_in_bytes,
        ),
        counters(
            "farpage_object_paged_out_bytes_total",
            "What an object's pager took.",
            |object| object.paged_out_bytes,
        ),
        counters(
            "farpage_object_failed_faults_total",
            "Faults on pages that could not be had.",
            |object| object.failed,
        ),
        family(
            "farpage_object_fault_seconds",
            "Faults, from their arrival to their answer.",
            seconds,
        ),
    ]
}

fn of_pagers(pagers: &[PagerFigures]) -> Vec<MetricFamily> {
    let each = |make: Make<'_, PagerFigures>| -> Vec<Metric> {
        let metric = |pager: &PagerFigures| make(&[("pager", &pager.name)], pager);
        pagers.iter().map(metric).collect()
    };
    vec![
        family(
            "farpage_pager_open",
            "Requests and returns that a pager has not answered yet.",
            each(&|labels, pager| gauge(labels, pager.open)),
        ),
        family(
            "farpage_pager_silent",
            "1 for a pager that has long not answered.",
            each(&|labels, pager| gauge(labels, pager.is_silent().into())),
        ),
        family(
            "farpage_pager_errors_total",
            "Answers of a pager that were errors, for objects that live.",
            each(&|labels, pager| counter(labels, pager.errors)),
        ),
        family(
            "farpage_pager_seconds",
            "From asking a pager to its answer, for objects that live.",
            each(&|labels, pager| histogram(labels, &times(&pager.times))),
        ),
    ]
}

fn family(name: &str, help: &str, metrics: Vec<Metric>) -> MetricFamily {
    let mut family = MetricFamily::default();
    family.set_name(name.into());
    family.set_help(help.into());
    let kind = match name {
        name if name.ends_with("_total") => MetricType::COUNTER,
        name if name.ends_with("_seconds") => MetricType::HISTOGRAM,
        _ => MetricType::GAUGE,
    };
    family.set_field_type(kind);
    family.set_metric(metrics);
    family
}

fn metric(labels: &[(&str, &str)]) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).into());
        pair.set_value((*value).into());
        pair
    };
    Metric::from_label(labels.iter().map(pair).collect())
}

fn gauge(labels: &[(&str, &str)], value: u64) -> Metric {
    let (mut metric, mut gauge) = (metric(labels), Gauge::default());
    gauge.set_value(value as f64);
    metric.set_gauge(gauge);
    metric
}

fn counter(labels: &[(&str, &str)], value: u64) -> Metric {
    let (mut metric, mut counter) = (metric(labels), Counter::default());
    counter.set_value(value as f64);
    metric.set_counter(counter);
    metric
}

fn histogram(labels: &[(&str, &str)], times: &Times) -> Metric {
    let (mut metric, mut histogram) = (metric(labels), Histogram::default());
    let buckets = times.below_powers().map(|(limit_ns, count)| {
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(limit_ns as f64 / 1e9);
        bucket.set_cumulative_count(count);
        bucket
    });
    histogram.set_bucket(buckets.collect());
    histogram.set_sample_count(times.count());
    histogram.set_sample_sum(times.sum_ns() as f64 / 1e9);
    metric.set_histogram(histogram);
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::figures;

    #[test]
    fn metrics_have_types_labels_and_buckets() {
        let mut figures = figures(3);
        figures.objects[1].name = "a \"name\"\n".into();
        let text = text(&figures);
        for line in [
            "# TYPE farpage_resident_bytes gauge",
            "farpage_resident_bytes 629145600",
            "farpage_paging_file_limit_bytes{folder=\"/var/tmp\"} 4294967296",
            "farpage_object_wired_bytes{name=\"a \\\"name\\\"\\n\",number=\"2\",uid=\"1000\"} 4096",
            "# TYPE farpage_object_paged_in_bytes_total counter",
            "farpage_object_fault_seconds_count{name=\"\",number=\"1\",uid=\"1000\"} 3",
            "farpage_pager_silent{pager=\"paging space\"} 0",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn what_there_is_none_of_is_left_out() {
        let text = text(&Figures::default());
        assert!(
            text.contains("farpage_objects 0") && !text.contains("farpage_pager"),
            "{text}"
        );
    }
}

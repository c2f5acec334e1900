//! Schemas of types that come from elsewhere.

/// The schema of `wholegrain_model::Kind`.
#[derive(schemars::JsonSchema)]
#[schemars(rename = "Kind", inline, rename_all = "lowercase")]
#[allow(dead_code)]
pub enum KindName {
    Gauge,
    Counter,
}

/// The schema of `wholegrain_model::ValueType`.
#[derive(schemars::JsonSchema)]
#[schemars(rename = "ValueType", inline, rename_all = "lowercase")]
#[allow(dead_code)]
pub enum ValueTypeName {
    Int,
    Float,
}

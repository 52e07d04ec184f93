// One prediction in full, as a dialog; arrow keys go to the previous and next item of the list it was opened from.

let detailList = [], detailSource = "";
let detailAt = 0;

function openDetail(item, items, source) {
  detailList = items;
  detailSource = source;
  detailAt = items.indexOf(item);
  showDetail();
  if (!byId("detail").open) byId("detail").showModal();
}

function stepDetail(by) {
  detailAt = clamp(detailAt + by, 0, detailList.length - 1);
  showDetail();
}

function showDetail() {
  const item = detailList[detailAt];
  const drawn = isDrawn(item);
  const fact = (name, value) => (value ? el("div", {}, el("h4", {}, name), el("pre", {}, value)) : null);
  byId("detail").replaceChildren(
    el("div", { class: "detail-head" }, el("h3", {}, item.id),
      el("div", {},
        linkButton(() => ({ record: item.id, evaluation: detailSource })),
        el("button", { class: "quiet", type: "button", "aria-label": "Previous item", disabled: detailAt === 0, onclick: () => stepDetail(-1) }, "\u2190"),
        el("button", { class: "quiet", type: "button", "aria-label": "Next item", disabled: detailAt === detailList.length - 1, onclick: () => stepDetail(1) }, "\u2192"),
        el("button", { class: "quiet", type: "button", onclick: () => byId("detail").close() }, "Close"))),
    el("div", { class: "detail-body", style: drawn ? {} : { "grid-template-columns": "minmax(0, 1fr)" } },
      drawn ? el("div", { class: "stage" }, drawnPicture(item)) : null,
      el("div", { class: "facts" },
        el("div", { class: "legend", style: { margin: 0 } },
          el("span", {}, item.task), statusOf(item), el("span", {}, "score ", el("span", { class: "score" }, figure(item.accuracy))),
          el("span", {}, "format ", el("span", { class: "score" }, figure(item.format))),
          item.samples.length ? el("span", {}, `mean of ${plural(item.samples.length, "sample")}`) : null,
          item.pictures > 1 ? el("span", {}, `first of ${item.pictures} pictures`) : null),
        fact("Question", item.question),
        ...(item.samples.length
          ? item.samples.map((sample, i) => fact(`Sample ${i + 1}: ${sample.status.replaceAll("_", " ")}, score ${figure(sample.accuracy)}`, sample.completion))
          : [fact("Completion", item.completion)]),
        fact(item.predicted.length ? "Prediction (on the model's scale)" : "Prediction", item.prediction),
        fact(item.true.length ? "True answer (pixels of the original picture)" : "True answer", item.truth), fact("Error", item.error))));
}

function detailKeys(event) {
  if (!byId("detail").open) return;
  if (event.key === "ArrowLeft") stepDetail(-1);
  if (event.key === "ArrowRight") stepDetail(1);
}

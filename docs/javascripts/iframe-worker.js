// Search runs in a worker, and browsers start none for pages that are read from the disk. There, a hidden frame takes
// its place. The theme looks for the name IFrameWorker, and would load such a script from the network if we had none.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const page = this.frame.contentDocument;
      page.open(); // Firefox would otherwise replace the empty page later, and lose what was put into it
      page.write("<!doctype html><body></body>");
      page.close();
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.arrived(data);
      inside.importScripts = async (...urls) => {
        for (const one of urls) await this.load(one);
      };
      this.ready = this.load(url);
    }

    load(url) {
      const page = this.frame.contentDocument;
      return new Promise((resolve, reject) => {
        const script = page.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${url} could not be loaded`));
        page.body.append(script);
      });
    }

    arrived(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
